"""How people judge rows and pairs, in a terminal and on the page alike.

question   what people are asked about the rows that enter a queue
keys       what each key says of a claim
session    one person at a queue
"""
