"""Reports: results of runs as tables, sentences and plots for people."""
