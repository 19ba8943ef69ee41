"""The OpenAPI document and the page generated from it."""
