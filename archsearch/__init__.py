"""archsearch: an update rule, written as its equation, becomes a trained and measured sequence mixer."""
