"""New clients without torch: the training step and the personal model as ONNX graphs, for any ONNX runtime."""
