"""What every part of the application stands on; it imports no other part."""
