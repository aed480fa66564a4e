"""From a question to int32 word ids: tokens, a vocabulary, hashed bins."""
