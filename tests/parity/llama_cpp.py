"""What llama.cpp computes from a GGUF file: the logarithms of the next token's probabilities.

Usage: python tests/parity/llama_cpp.py FILE VOCAB TOKEN...

Prints them as a list, in the order of the vocabulary. In a process of its own, for llama.cpp ends
the process where a file is not as it should be. Needs the package `xllamacpp`.
"""

from __future__ import annotations

import json
import sys
import urllib.request

import xllamacpp


def main(file: str, vocabulary: int, tokens: list[int]) -> list[float]:
    """Return the logarithm of the probability of each token after `tokens`."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = file
    parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = 64
    parameters.n_parallel = 1
    parameters.warmup = False
    parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    off = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    parameters.flash_attn_type = off
    server = xllamacpp.Server(parameters)
    question = {"prompt": tokens, "n_predict": 1, "n_probs": vocabulary, "temperature": 0.0}
    request = urllib.request.Request(
        f"{server.listening_address}/completion",
        json.dumps(question).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        answer = json.load(response)
    found = {
        each["id"]: each["logprob"]
        for each in answer["completion_probabilities"][0]["top_logprobs"]
    }
    return [found[token] for token in range(vocabulary)]


if __name__ == "__main__":
    path, size, *row = sys.argv[1:]
    found = main(path, int(size), [int(token) for token in row])
    sys.stdout.write(f"\nlogprobs: {json.dumps(found)}\n")
