"""Options of readers and writers: their names, how values are checked, and what a misspelled one may have meant."""
