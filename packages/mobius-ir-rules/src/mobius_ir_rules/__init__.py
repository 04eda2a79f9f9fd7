"""Rules and passes that rewrite ONNX graphs."""
