"""Other formats beside the store's own arrays: safetensors tables, activations from elsewhere, zarr-python's bfloat16."""
