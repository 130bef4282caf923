"""The OpenAI-compatible HTTP front. Tokenises, enqueues, detokenises; the loop lives in the executor."""
