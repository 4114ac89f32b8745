"""Reports: the results of runs on one page; and the demonstration, which writes one."""
