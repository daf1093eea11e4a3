"""The model: configuration, layers, the Transformer, and where its weights come from."""
