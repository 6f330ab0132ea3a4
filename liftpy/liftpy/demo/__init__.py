"""A demonstration on real data: the 336,776 flights that left New York in 2013."""
