"""The validator: decides requests, appends entries, publishes rejections."""
