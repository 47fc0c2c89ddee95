"""An engine on llama.cpp: any GGUF model, several answers in one decode, on a CPU."""
