"""The protocol of communicators, cutting, orders of addition, precisions, wire formats, symbols, shapes."""
