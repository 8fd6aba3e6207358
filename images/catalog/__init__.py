"""The image store on disk: blobs, layers, tags, who uses them, what they take, whether they are whole."""
