"""What a program costs: HLO instructions and operators of PyTorch to FLOPs and bytes."""
