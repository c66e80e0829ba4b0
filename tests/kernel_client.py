"""Execution of notebooks, with all messages of their kernels."""

from nbclient import NotebookClient


class Client(NotebookClient):
    """Keeps all messages of the kernel: (type, content)."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.messages = []

    def process_message(self, message, *args):
        self.messages.append((message["msg_type"], message["content"]))
        return super().process_message(message, *args)
