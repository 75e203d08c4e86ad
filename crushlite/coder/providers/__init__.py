"""Model providers: each turns a request into a stream of pieces, over our own HTTP client."""
