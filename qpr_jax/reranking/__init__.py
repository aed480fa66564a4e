"""The second stage: models that read a query and a hit together and order the hits anew."""
