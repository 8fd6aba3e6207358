"""The image store on disk: blobs, layers, tags, who uses them, what they take, the two forms of a layer."""
