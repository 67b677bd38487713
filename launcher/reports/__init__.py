"""What a person reads of a run that is over: a page of text, a page of HTML."""
