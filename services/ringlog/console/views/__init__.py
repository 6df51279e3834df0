"""The functions that compute the JSON of views. ``console.table`` declares the views."""
