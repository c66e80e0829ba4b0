"""The five workloads of the paper (section V): models, input pipelines and synthetic data, at any scale."""
