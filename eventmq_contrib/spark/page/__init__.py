"""The page of `eventmq spark report`: `plots` computes shapes, the template lays them out."""
