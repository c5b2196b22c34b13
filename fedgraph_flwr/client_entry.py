"""What Flower loads for each message: hands it over, or answers it in this process.

A site's worker that stays has imported all that answers need, so that a process whose
message is handed over imports next to nothing.
"""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from typing_extensions import override

from .node.resident import hand_over, is_resident


class EntryApp(ClientApp):
    """A ClientApp that has no functions of its own."""

    @override
    def __call__(self, message: Message, context: Context) -> Message:
        if is_resident(context.node_config):
            return hand_over(message, context)
        from .client_app import app as answers  # here: see the module

        return answers(message, context)


app = EntryApp()
