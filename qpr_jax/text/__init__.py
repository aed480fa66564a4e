"""From text to int32 token ids: words, a vocabulary with hash bins, word pieces."""
