"""The offline page of a verdict: whether the article is right, told by the runs of one study or several.

gathered    what is shown beyond the verdict: single heads, courses, costs
answering   the answers in plain words
charts      which marks each chart is made of        drawing   a chart as SVG in the page's own colours
maps        weights of one held-out sequence          pixels    a matrix as a PNG of one pixel a weight
tables      all numbers                               commands  how a study is trained again
words       both languages (texts/*.toml)             document  the page
"""
