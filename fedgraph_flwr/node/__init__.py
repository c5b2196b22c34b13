"""What runs at a site: a message is answered, checked, logged."""
