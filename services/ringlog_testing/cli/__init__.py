"""The commands of ``ringlog sim`` for users' tests."""
