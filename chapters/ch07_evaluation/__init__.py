"""Chapter 7: how good is a model, is a new one worse, and why does a case fail?"""
