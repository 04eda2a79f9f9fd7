"""GGUF files as a source of models: a `.gguf` file in, an `OpenedModel` out.

A GGUF file holds metadata, a tokenizer and tensors, most of them quantised. Its metadata become the
fields of the `config.json` that the file was made from, its tensors get their names of HuggingFace
back, and the architectures of `mobius_hf` do the rest.
"""
