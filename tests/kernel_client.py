"""Notebooks executed, with all that their kernels send."""

from nbclient import NotebookClient


class Client(NotebookClient):
    """Keeps what the kernel sends besides: (type, content)."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.messages = []

    def process_message(self, message, *args):
        self.messages.append((message["msg_type"], message["content"]))
        return super().process_message(message, *args)
