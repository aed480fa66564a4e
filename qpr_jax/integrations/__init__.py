"""Objects with the interfaces of other libraries, each of which is imported only when used."""
