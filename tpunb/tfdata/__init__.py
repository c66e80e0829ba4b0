"""What a tf.data pipeline is: its graph, the effects of its operations, its stages, rewriting, iterator position."""
