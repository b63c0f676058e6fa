# JupyterLab with glass-vllm, on a CPU:
#     docker build --tag glass-vllm .
#     docker run --rm -p 8888:8888 -v glass-vllm-work:/home/learner/course/work glass-vllm
# The volume keeps your answers.
FROM python:3.12-slim-bookworm

# Triton compiles its launcher with a C compiler.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home learner
COPY --chown=learner . /home/learner/course
WORKDIR /home/learner/course
RUN python -m pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu -c constraints.txt -e .
RUN install -d -o learner work
USER learner
EXPOSE 8888
CMD ["python", "-m", "tools.lab", "--ip=0.0.0.0"]
