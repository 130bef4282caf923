"""What happens to a document: gate, load, clean, chunk, retrieve, prompt, extract, ground, resolve, evaluate.

The engine is reached only through its HTTP client, the database only through `db`."""
