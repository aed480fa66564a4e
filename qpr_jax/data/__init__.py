"""From a pair file to clusters of questions with one meaning, split by cluster."""
