"""Small standard-library-only programs (Python 3.8+) that run on the host; they gather, `domain` judges."""
