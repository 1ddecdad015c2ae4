"""The page of a run: one HTML file that needs no network, made from the outcome's JSON document alone.

- Because the page is a function of the document, a run and its old `--json` give the same bytes. Fields that a
  document of another version lacks are named in one line. Two documents make the same page with twice the rows, named A
  and B, and a section of the keys in which their scenarios differ.
- The page may load nothing, by a Content-Security-Policy of `default-src 'none'`. One function makes elements
  and escapes words.
- At most 8,000 spans are drawn, those of the first ranks, and the page says so. 8 ranks and 4 rows have 4,000 and
  weigh 1.4 MB.
"""
