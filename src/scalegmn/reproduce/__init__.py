"""The paper's tables, on networks that we fit ourselves.

A *dataset* is a zoo and a task, a *method* a model with its options; a table shows methods on datasets. Each run
leaves one record, a JSON file, and tables are made from records alone.
"""
