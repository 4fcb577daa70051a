"""Labelling of rows and pairs by people, shared by the terminal and the page.

question   what people are asked about rows that enter a queue
keys       meaning of each key for a claim
session    one person's work on a queue
"""
