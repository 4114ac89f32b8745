"""ONNX files as modules: `module` reads them, `graph` simplifies, `operations` and `axes` compute."""
