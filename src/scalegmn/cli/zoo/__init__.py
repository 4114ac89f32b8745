"""`scalegmn zoo`: build, look at, check and import collections of networks."""
