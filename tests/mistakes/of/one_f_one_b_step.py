def forward(pipeline, part):
    activation = pipeline.receive_activation(part)
    activation = pipeline.forward(part, activation)
    pipeline.send_activation(part, activation)


def backward(pipeline, part):
    upstream = pipeline.receive_gradient(part)
    upstream = pipeline.backward(part, upstream)
    pipeline.send_gradient(part, upstream)


def one_f_one_b_step(pipeline, batch):
    parts = pipeline.begin(batch)
    ahead = min(pipeline.after, len(parts))
    for part in parts[:ahead]:
        forward(pipeline, part)
    for number in range(len(parts) - ahead):
        forward(pipeline, parts[ahead + number])
        backward(pipeline, parts[number])
    for part in parts[len(parts) - ahead:]:
        backward(pipeline, part)
    return pipeline.update()
