"""Pages, tables and figures of runs: what `precollapse report` and `precollapse steer --out` write.

Guarantees that nothing here computes a statistic: numbers come from `analysis`, and pages state them. matplotlib is imported
only where a figure is drawn.
"""
