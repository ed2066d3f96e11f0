// Numbers of modules by their order: by default they follow from the folder's path, and no two builds are the same.
module.exports = { optimization: { moduleIds: 'natural', chunkIds: 'natural' } };
