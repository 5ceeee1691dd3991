"""x"""
def options(p): pass
def run(c): pass
