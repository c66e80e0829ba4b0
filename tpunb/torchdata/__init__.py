"""What a DataLoader of PyTorch is: its settings, what its batches depend on, and the costs of its parts."""
