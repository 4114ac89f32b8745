"""Reports: what runs gave, on one page; and the demonstration, which ends in one."""
